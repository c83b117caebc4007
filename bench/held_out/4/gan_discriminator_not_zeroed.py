"""A GAN of rings with two optimizers (non-saturating loss). FAULT from step 0: zero_grad is called for the generator's optimizer only; the
discriminator's gradients are added up over all steps, those that the generator's loss leaves there too. Without Rangewatch: the norm of the
discriminator's gradient grows from 0.3 to 630; generated radii are off by 0.3 at step 40 and by 5.4 at the end.
Report: Hsintien-Ng/idinvert_pytorch-reproduced#1 (optimizer_D.zero_grad() missing), Project-MONAI/GenerativeModels#102, ajbrock/BigGAN-PyTorch#25.
Cause: optimizer (gradients are not cleared). Place: discriminator.*. Right: zero_grad. Wrong: learning rate, data, GradScaler, clip."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": r"discriminator.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "[Mm]ask"],
          "right": "zero_grad|accumul|clear"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(83); torch.set_num_threads(1)


def mlp(i, o, d=64):
    return nn.Sequential(nn.Linear(i, d), nn.LeakyReLU(0.2), nn.Linear(d, d), nn.LeakyReLU(0.2), nn.Linear(d, o))


both = nn.ModuleDict({"generator": mlp(8, 2), "discriminator": mlp(2, 1)})
generator, discriminator = both["generator"], both["discriminator"]
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
watch = rangewatch.attach(both, [opt_g, opt_d])
for step in range(200):
    angle = 6.283 * torch.rand(128, 1)
    real = torch.cat([angle.cos(), angle.sin()], 1) * (1 + 0.05 * torch.randn(128, 1))
    fake = generator(torch.randn(128, 8))
    loss_d = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
    loss_d.backward()
    opt_d.step()
    norm = torch.cat([p.grad.flatten() for p in discriminator.parameters()]).norm().item()
    loss_g = F.softplus(-discriminator(fake)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    watch.log(loss=loss_g.item(), loss_d=loss_d.item())
    if step % 20 == 0 or step == 199:
        print(step, "g", round(loss_g.item(), 4), "d", round(loss_d.item(), 4), "norm", round(norm, 2), "off", round((fake.norm(dim=1) - 1).abs().mean().item(), 3))
